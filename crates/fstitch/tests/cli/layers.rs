//! Mounts that show their volumes in another way.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::harness::{Mounted, Place, fstitch};

fn names(at: &Path) -> BTreeSet<String> {
    fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn names_are_found_whatever_their_case_through_the_kernel() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("-o casefold", &image, &at) else { return };
    let root = mounted.path();
    fs::create_dir_all(root.join("Programs/Büro")).unwrap();
    fs::write(root.join("programs/BÜRO/Letter.txt"), "Dear").unwrap();
    assert_eq!(fs::read_to_string(root.join("PROGRAMS/bu\u{308}ro/LETTER.TXT")).unwrap(), "Dear");
    // Through whatever spelling a file goes, none of them finds it afterwards: the kernel remembers no name.
    for round in 0..3 {
        fs::write(root.join("note"), format!("{round}")).unwrap();
        for name in ["note", "Note", "NOTE"] {
            assert_eq!(fs::read_to_string(root.join(name)).unwrap(), format!("{round}"));
        }
        fs::remove_file(root.join(["NOTE", "note", "Note"][round])).unwrap();
        for name in ["note", "Note", "NOTE"] {
            assert_eq!(fs::read(root.join(name)).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        }
    }
    let made = fs::File::options().write(true).create_new(true).open(root.join("programs/büro/letter.TXT"));
    assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::write(root.join("draft"), "new").unwrap();
    fs::rename(root.join("DRAFT"), root.join("programs/büro/LETTER.txt")).unwrap();
    assert_eq!(names(&root.join("Programs/Büro")), BTreeSet::from(["Letter.txt".to_owned()]));
    assert_eq!(fs::read_to_string(root.join("Programs/Büro/letter.txt")).unwrap(), "new");
    mounted.end();
    assert_eq!(fstitch(&format!("cat {image}:/Programs/Büro/Letter.txt")).ok(), "new");
    assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
}

#[test]
fn hidden_names_are_not_there_and_are_there_without_the_option() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fs::create_dir(mounted.path().join("keys")).unwrap();
    fs::write(mounted.path().join("keys/own.key"), "secret").unwrap();
    fs::write(mounted.path().join("keys/own.pub"), "public").unwrap();
    mounted.end();
    let mounted = Mounted::new("-o hide=*.key,hide=lost+found", &image, &at).unwrap();
    let root = mounted.path();
    assert_eq!(names(root), BTreeSet::from(["keys".to_owned()]));
    assert_eq!(names(&root.join("keys")), BTreeSet::from(["own.pub".to_owned()]));
    assert_eq!(fs::read(root.join("keys/own.key")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::write(root.join("other.key"), "x").unwrap_err().kind(), ErrorKind::PermissionDenied);
    fs::remove_file(root.join("keys/own.pub")).unwrap();
    assert_eq!(fs::remove_dir(root.join("keys")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    mounted.end();
    assert_eq!(fstitch(&format!("cat {image}:/keys/own.key")).ok(), "secret");
    fstitch(&format!("mount -o hide=a/b {image} {at}")).refused(2, "`a/b` is no pattern of a name");
}
