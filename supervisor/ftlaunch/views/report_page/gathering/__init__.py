"""What one walk along a journal gathers for the page, in bounded room. Nothing here reads logs or autopsies."""
