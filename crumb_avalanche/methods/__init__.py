"""One file a method, by replay, by penalties or in closed form, what some share, and the registry that knows them."""
