"""What the operator's console stores, and what it reads about accounts. No content of customers."""
