"""Parts for other frameworks, which need their packages."""
