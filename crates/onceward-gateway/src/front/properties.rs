//! What holds for every way in which bytes may arrive.
