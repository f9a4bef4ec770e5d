"""Tables, figures and an HTML page of finished runs."""
