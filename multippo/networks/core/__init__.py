"""The running of modules, which their authors and users need not read."""
