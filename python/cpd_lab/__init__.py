# SPDX-License-Identifier: Apache-2.0
"""The lab of CPD: trains networks over several nodes and repeats the experiments of papers.

The lab has the commands `cpd train`, `cpd study`, `cpd demo` and `cpd report`. Programs call
`cpd_lab.train`.
"""
