"""The studies of the papers: each module has the cells, tables and findings of one paper."""
