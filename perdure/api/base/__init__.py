"""What all routes share."""
