"""Numbers that specimens give on one engine, each computed once; checks read them."""
