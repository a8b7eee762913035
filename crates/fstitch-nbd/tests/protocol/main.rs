//! The server as a client sees it, byte by byte, and what a client must not be able to do to it. Without these a client of another
//! make hangs, is told something wrong, or takes the server down.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod bytes;
mod client;
mod exports;
mod hostile;
mod lifetime;
mod negotiation;
mod requests;
mod threads;
