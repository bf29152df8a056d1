"""The files of the page for browsers. assets/ has its scripts and styles as they are sent."""
