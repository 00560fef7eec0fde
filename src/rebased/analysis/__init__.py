"""What finished runs say: numbers, pictures, pages."""
