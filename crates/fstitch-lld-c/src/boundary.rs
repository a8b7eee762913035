//! Between C and Rust: panics, errno, the text of the last failure, and memory of the caller's.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;

use crate::failure::{Failure, Result};

thread_local! {
    /// Of the last failure in this thread.
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Does the work of a call. Whatever goes wrong is -1, errno and a text that begins with the call's name.
pub(crate) fn call<T: From<i8>>(name: &str, work: impl FnOnce() -> Result<T>) -> T {
    attempt(name, work).unwrap_or(T::from(-1))
}

/// The same for calls that answer with something else.
pub(crate) fn attempt<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Option<T> {
    // What a panic leaves half done is locked, and refused to whoever comes next.
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(libc::ENOTRECOVERABLE, format!("a defect of the library: {said}")))
    });
    done.map_err(|failure| tell(name, failure)).ok()
}

fn tell(name: &str, failure: Failure) {
    let text = format!("{name}: {}", failure.text).replace('\0', "?");
    // A thread that is ending has no text any more, and nobody who reads it.
    let _ = TEXT.try_with(|place| *place.borrow_mut() = CString::new(text).ok());
    // SAFETY: the C library gives every thread an errno that lives as long as the thread.
    unsafe { *libc::__errno_location() = failure.errno };
}

/// The text of the last failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn lld_error() -> *const c_char {
    let text = TEXT.try_with(|place| place.borrow().as_ref().map(|text| text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// A place of the caller's for an answer.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Refuses what cannot be one, before anything is done.
    ///
    /// # Safety
    /// `place` is null, misaligned, or may be written until this is dropped.
    pub(crate) unsafe fn new(place: *mut T, what: &str) -> Result<Self> {
        let place = NonNull::new(place).filter(|place| place.is_aligned());
        place.map(Self).ok_or_else(|| Failure::invalid(format!("no place for {what}")))
    }

    /// The same where the caller may want no answer.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn or_none(place: *mut T, what: &str) -> Result<Option<Self>> {
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { Self::new(place, what) }.map(Some)
    }

    pub(crate) fn put(&self, value: T) {
        // SAFETY: that it may be written is what `new` was promised; nothing that has a destructor is put there.
        unsafe { self.0.write(value) };
    }
}

/// What the caller wants of a call; zeros where nothing is given.
///
/// # Safety
/// `place` is null, misaligned, or has a value.
pub(crate) unsafe fn given<T: Copy + Default>(place: *const T, what: &str) -> Result<T> {
    if place.is_null() {
        return Ok(T::default());
    }
    if !place.is_aligned() {
        return Err(Failure::invalid(format!("no {what} at this address")));
    }
    // SAFETY: the caller's promise, and what has just been looked at.
    Ok(unsafe { *place })
}

fn fits<T>(place: *const T, len: usize) -> Result<NonNull<T>> {
    let place = NonNull::new(place.cast_mut()).filter(|place| place.is_aligned());
    let bytes = len.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    place.filter(|_| bytes).ok_or_else(|| Failure::invalid("no memory at this address, or of this length"))
}

/// Bytes of the caller's.
///
/// # Safety
/// `place` is null, or has `len` bytes that nobody changes meanwhile.
pub(crate) unsafe fn bytes<'a>(place: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise, and what has just been looked at.
    Ok(unsafe { std::slice::from_raw_parts(fits(place.cast(), len)?.as_ptr(), len) })
}

/// Bytes of the caller's, to be changed; items likewise.
///
/// # Safety
/// `place` is null, misaligned, or has so many items that nobody else uses meanwhile.
pub(crate) unsafe fn room<'a, T>(place: *mut T, len: usize) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise, and what has just been looked at.
    Ok(unsafe { std::slice::from_raw_parts_mut(fits(place, len)?.as_ptr(), len) })
}

/// A path of the caller's.
///
/// # Safety
/// `path` is null or a string that ends with a zero byte, and stays while it is used.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        return Err(Failure::invalid("no path"));
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// A name of the caller's.
///
/// # Safety
/// As [`path`].
pub(crate) unsafe fn name<'a>(name: *const c_char) -> Result<&'a str> {
    if name.is_null() {
        return Err(Failure::invalid("no name"));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| Failure::invalid("a name that is not UTF-8"))
}

/// Yes or no of C.
pub(crate) fn found(place: &Out<u64>, value: Option<u64>) -> c_int {
    match value {
        Some(value) => {
            place.put(value);
            1
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> (c_int, String) {
        // SAFETY: a string of this thread, which no call changes meanwhile.
        let text = unsafe { CStr::from_ptr(lld_error()) }.to_str().unwrap().to_owned();
        (std::io::Error::last_os_error().raw_os_error().unwrap(), text)
    }

    /// A defect of ours takes nobody's program with it.
    #[test]
    fn a_panic_ends_here() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(call::<c_int>("a_call", || panic!("seeded {}", 7)), -1);
        assert_eq!(last(), (libc::ENOTRECOVERABLE, "a_call: a defect of the library: seeded 7".to_owned()));
        assert_eq!(attempt::<u8>("another", || panic!("plain")), None);
        assert!(last().1.ends_with("plain"));
        std::panic::set_hook(quiet);
    }

    #[test]
    fn a_text_belongs_to_its_thread() {
        let fail = |text: &str| call::<c_int>("a_call", || Err(Failure::invalid(text)));
        assert_eq!(fail("mine\0"), -1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: as above.
                assert!(unsafe { CStr::from_ptr(lld_error()) }.is_empty());
                fail("another");
                assert_eq!(last().1, "a_call: another");
            });
        });
        assert_eq!(last(), (libc::EINVAL, "a_call: mine?".to_owned()));
    }

    #[test]
    fn memory_that_is_none_is_refused() {
        let mut number = 7_u64;
        // SAFETY: null and what is misaligned are allowed, and the rest is ours.
        unsafe {
            assert!(Out::<u64>::new(std::ptr::null_mut(), "x").is_err());
            assert!(Out::new((&raw mut number).byte_add(1), "x").is_err());
            assert!(Out::<u64>::or_none(std::ptr::null_mut(), "x").unwrap().is_none());
            Out::new(&raw mut number, "x").unwrap().put(8);
            assert_eq!(given(std::ptr::null::<u64>(), "x"), Ok(0));
            assert_eq!(given(&raw const number, "x"), Ok(8));
            assert!(given((&raw const number).byte_add(1), "x").is_err());
            assert!(bytes(std::ptr::null(), 1).is_err() && bytes(std::ptr::null(), 0).is_ok());
            assert!(bytes((&raw const number).cast(), usize::MAX).is_err());
            assert!(room(&raw mut number, usize::MAX / 8 + 2).is_err());
            assert!(path(std::ptr::null()).is_err() && name(std::ptr::null()).is_err());
            assert!(name(c"\xff".as_ptr()).is_err());
        }
    }
}
