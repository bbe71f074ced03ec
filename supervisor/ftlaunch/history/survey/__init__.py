"""Surveys many run dirs quickly, from the ends of their journals. Nothing here reads a whole journal."""
