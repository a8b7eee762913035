//! The protocol's bytes: numbers, what clients ask, what they are answered. Everything here is a function of values.

pub(crate) mod batch;
pub(crate) mod error;
pub(crate) mod numbers;
pub(crate) mod option;
pub(crate) mod reply;
pub(crate) mod request;
