"""The studies of the papers.

Each module has the measurements (cells), the tables and the judged claims of one paper.
"""
