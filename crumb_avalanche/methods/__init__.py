"""The methods: CRUMB, its bounds and its rivals, by replay, by penalties and in closed form."""
