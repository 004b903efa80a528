//! Systole (being built).
