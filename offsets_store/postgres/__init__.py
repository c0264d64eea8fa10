"""How do we speak to Postgres, and what do its errors mean?"""
