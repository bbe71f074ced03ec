"""The whole-screen display of `ftctl top`. Only this package imports Textual; `top/` decides what is shown."""
