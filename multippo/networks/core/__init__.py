"""The running of modules: what their authors and users need not read."""
