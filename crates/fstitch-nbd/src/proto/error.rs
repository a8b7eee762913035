//! Errors as clients see them.

use std::borrow::Cow;

use fstitch_core::{Errno, Error};

/// An error number of the protocol: Linux's values, but only those that its text allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

impl Code {
    pub(crate) const PERM: Self = Self(1);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const NOMEM: Self = Self(12);
    pub(crate) const INVAL: Self = Self(22);
    pub(crate) const NOSPC: Self = Self(28);
    pub(crate) const OVERFLOW: Self = Self(75);
    pub(crate) const NOTSUP: Self = Self(95);

    /// What a failure of an export is to a client. A poisoned volume is broken, not write-protected: `EPERM` would say that
    /// trying was the client's mistake.
    fn of(error: &Error) -> Self {
        if matches!(error, Error::Poisoned(_)) {
            return Self::IO;
        }
        match error.errno() {
            Errno::PERM | Errno::ACCES | Errno::ROFS => Self::PERM,
            Errno::NOMEM => Self::NOMEM,
            Errno::INVAL => Self::INVAL,
            Errno::NOSPC | Errno::FBIG => Self::NOSPC,
            Errno::OVERFLOW => Self::OVERFLOW,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Self::NOTSUP,
            _ => Self::IO,
        }
    }
}

/// Why a request fails: the number, and a sentence for clients that can show it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: Cow<'static, str>,
}

impl Refusal {
    pub(crate) const fn new(code: Code, text: &'static str) -> Self {
        Self { code, text: Cow::Borrowed(text) }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { code: Code::of(&error), text: error.to_string().into() }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use fstitch_core::{BlockNo, IoOp, Structure};

    use super::*;

    #[test]
    fn every_kind_of_failure_has_a_number_of_the_protocol() {
        let medium = Error::io(IoOp::Write, BlockNo(1), io::Error::other("gone"));
        let cases = [
            (medium, Code::IO),
            (Error::corrupt(Structure::Volume, None, "damaged"), Code::IO),
            (Error::Poisoned("an earlier write failed".into()), Code::IO),
            (Error::Unsupported("this".into()), Code::NOTSUP),
            (Errno::ROFS.into(), Code::PERM),
            (Errno::NOSPC.into(), Code::NOSPC),
            (Errno::FBIG.into(), Code::NOSPC),
            (Errno::INVAL.into(), Code::INVAL),
            (Errno::NOMEM.into(), Code::NOMEM),
            (Errno::OVERFLOW.into(), Code::OVERFLOW),
            (Errno::NOENT.into(), Code::IO),
        ];
        for (error, code) in cases {
            assert_eq!(Refusal::from(error.clone()).code, code, "{error}");
        }
    }
}
