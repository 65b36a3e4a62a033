//! Part of the view.
