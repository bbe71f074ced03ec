"""The template of the page, its styles and its scripts, inlined by `render.py`. No Python lives here."""
