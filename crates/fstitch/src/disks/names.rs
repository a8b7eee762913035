//! `a.img,b.img,c.img`: the disks of a volume, where a command takes an image.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The word that stands for a disk that is not there.
pub const MISSING: &str = "missing";

/// The disks that the argument for an image names. A file that has the whole text as its name is one disk, whatever commas are in it.
pub fn names(image: &Path) -> Vec<PathBuf> {
    let bytes = image.as_os_str().as_bytes();
    if !bytes.contains(&b',') || image.symlink_metadata().is_ok() {
        return vec![image.to_path_buf()];
    }
    bytes.split(|byte| *byte == b',').map(|name| PathBuf::from(OsStr::from_bytes(name))).collect()
}

/// Whether an argument names several disks.
pub fn is_several(image: &Path) -> bool {
    names(image).len() > 1
}

/// Whether a name stands for a disk that is not there.
pub fn is_missing(name: &Path) -> bool {
    name == Path::new(MISSING) && name.symlink_metadata().is_err()
}

/// The same argument, independent of the current directory. Of several disks some need not be there; one alone must.
pub fn canonical(image: &Path) -> Result<PathBuf> {
    let all = names(image);
    let [only] = &all[..] else {
        let each = all.iter().map(|name| one_of_several(name)).collect::<Result<Vec<_>>>()?;
        let words: Vec<&OsStr> = each.iter().map(|name| name.as_os_str()).collect();
        return Ok(PathBuf::from(words.join(OsStr::new(","))));
    };
    only.canonicalize().with_context(|| only.display().to_string())
}

fn one_of_several(name: &Path) -> Result<PathBuf> {
    ensure!(!name.as_os_str().is_empty(), "a list of disks with nothing between two commas");
    if is_missing(name) {
        return Ok(name.to_path_buf());
    }
    let path = name.canonicalize().or_else(|_| std::path::absolute(name));
    let path = path.with_context(|| name.display().to_string())?;
    ensure!(
        !path.as_os_str().as_bytes().contains(&b','),
        "{}: a disk in a list cannot have a comma in its path: give it another name by a link",
        path.display()
    );
    Ok(path)
}

/// Whether two arguments have a disk in common.
pub fn same(one: &Path, other: &Path) -> bool {
    let paths = |image: &Path| -> Vec<PathBuf> {
        names(image).iter().filter_map(|name| name.canonicalize().ok()).collect()
    };
    let others = paths(other);
    paths(one).iter().any(|path| others.contains(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_told_from_names_with_commas() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("a,b"), "").unwrap();
        std::fs::write(at("c"), "").unwrap();
        assert_eq!(names(&at("a,b")), [at("a,b")]);
        assert_eq!(names(&at("c,d")), [at("c"), PathBuf::from("d")]);
        assert!(!is_several(&at("c")) && is_several(Path::new("x,missing")));
        assert!(canonical(Path::new("x,,y")).unwrap_err().to_string().contains("nothing between"));
        let list = PathBuf::from(format!("{},missing,{}", at("c").display(), at("d").display()));
        let real = place.path().canonicalize().unwrap();
        let wanted = format!("{},missing,{}", real.join("c").display(), at("d").display());
        assert_eq!(canonical(&list).unwrap(), PathBuf::from(wanted));
        assert!(same(&list, &at("c")) && !same(&list, &at("a,b")));
        assert!(canonical(&at("gone")).is_err(), "one alone must be there");
    }
}
