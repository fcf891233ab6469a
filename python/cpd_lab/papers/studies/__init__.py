"""The studies of the papers.

Each module has the cells, the tables and the findings of one paper.
"""
