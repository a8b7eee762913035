//! The medium: what a power cut may leave, against sets of images worked out by hand and against a second
//! implementation that follows the words of `docs/medium.md`.
//!
//! What it prevents: a crash model that is too kind, so that the laboratory looks at fewer images than a disk can
//! leave, or too harsh, so that it blames a file system for images which cannot be.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod choices;
mod dmlog;
mod examples;
mod fault;
mod live;
mod memory;
mod naive;
mod past;
mod property;
mod recorder;
