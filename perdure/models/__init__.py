"""Models: what one must do, who looks it up by name, and the models that come with Perdure."""
