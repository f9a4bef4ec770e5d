"""One file a method, by replay, by penalties or in closed form, and the registry that knows them."""
