"""Every picture, drawn from tidy tables (one fact a row). It knows no model."""
