# SPDX-License-Identifier: Apache-2.0
"""Raises ImportError in a subinterpreter of Python. The package imports this module first.

In a subinterpreter, the C++ module would wait forever for the GIL of the main interpreter.
"""

try:
    import _interpreters as interpreters  # type: ignore[import-not-found]  # from Python 3.13 on
except ImportError:
    try:
        import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]
    except ImportError:
        interpreters = None

if interpreters is not None and interpreters.get_current() != interpreters.get_main():
    raise ImportError(
        "cpd cannot be imported in a subinterpreter: its native module belongs to the process's "
        "main interpreter; import it there, or start a process (under mod_wsgi: "
        "WSGIApplicationGroup %{GLOBAL})",
        name="cpd",
    )
