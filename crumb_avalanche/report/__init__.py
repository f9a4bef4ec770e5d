"""Tables, pictures and HTML pages of finished runs."""
