"""Complete, running examples; each needs no API key, and runs on Gemini where `GOOGLE_API_KEY` is set."""
