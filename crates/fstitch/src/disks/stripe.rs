//! Stripes: several disks whose labels say that a volume goes around them, unit by unit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fstitch_core::BlockDevice;
use fstitch_disk::{Direct, DiskOptions, FileDisk, STRIPE_DATA, STRIPE_LABEL, Stripe, StripeLabel};

use super::names::{is_missing, names};
use crate::mkfs::show_uuid;
use crate::open::{Access, disk};
use crate::probe;

/// The label with which a medium begins, if it is a disk of a stripe.
fn label(path: &Path) -> Result<Option<StripeLabel>> {
    let name = || path.display().to_string();
    let head = fstitch_disk::probe(path, 0, STRIPE_LABEL).with_context(name)?;
    StripeLabel::find(&head).with_context(name)
}

/// Whether the first of several disks says that they are a stripe.
pub fn is_one(image: &Path) -> bool {
    let all = names(image);
    all.len() > 1
        && all.iter().filter(|name| !is_missing(name)).any(|name| !matches!(label(name), Ok(None) | Err(_)))
}

/// What to say of one medium that is a disk of a stripe, if it is.
pub fn alone(path: &Path) -> Option<anyhow::Error> {
    let StripeLabel { disk, disks, uuid, .. } = label(path).ok()??;
    let (name, uuid) = (path.display(), show_uuid(&uuid));
    Some(anyhow!(
        "{name} is disk {disk} of the {disks} of stripe {uuid}: name all of them, with commas between them"
    ))
}

/// The disks of a stripe, in their order, whatever the order in which they were named.
fn sorted(image: &Path) -> Result<(Vec<PathBuf>, StripeLabel)> {
    let mut known: Option<StripeLabel> = None;
    let mut places: Vec<Option<PathBuf>> = Vec::new();
    for name in names(image) {
        ensure!(!is_missing(&name), "{}: a stripe has all of its disks, or it has nothing", image.display());
        let found = label(&name)?;
        let found =
            found.with_context(|| format!("{} is no disk of a stripe, and others are", name.display()))?;
        let first = known.get_or_insert(found);
        let is_same = StripeLabel { disk: first.disk, ..found } == *first;
        if !is_same {
            let (uuid, other) = (show_uuid(&first.uuid), show_uuid(&found.uuid));
            bail!("{} belongs to stripe {other}, and others to {uuid}", name.display());
        }
        places.resize(usize::from(first.disks), None);
        let place = &mut places[usize::from(found.disk)];
        if let Some(other) = place {
            let (one, two) = (other.display(), name.display());
            bail!("{one} and {two} are both disk {} of the stripe: one is a copy of the other", found.disk);
        }
        *place = Some(name);
    }
    let label = known.context("a stripe of no disks")?;
    let lacking: Vec<String> =
        (0..).zip(&places).filter(|(_, place)| place.is_none()).map(|(no, _)| format!("{no}")).collect();
    ensure!(
        lacking.is_empty(),
        "{}: of the {} disks of stripe {} these are not named: {}",
        image.display(),
        label.disks,
        show_uuid(&label.uuid),
        lacking.join(", ")
    );
    Ok((places.into_iter().flatten().collect(), label))
}

/// Opens a stripe whose blocks have so many bytes.
pub fn open_as(
    image: &Path,
    block_size: u32,
    access: Access,
    direct: Direct,
) -> Result<Stripe<Arc<FileDisk>>> {
    let (disks, label) = sorted(image)?;
    let options = DiskOptions {
        block_size,
        offset: STRIPE_DATA,
        size: Some(label.bytes),
        read_only: access == Access::ReadOnly,
        direct,
        ..DiskOptions::default()
    };
    let disks = disks.iter().map(|path| disk(path, &options).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    Ok(Stripe::new(disks, label.unit)?)
}

/// Opens a stripe, with blocks as its volume has them; if what is there does not say it, with small ones.
pub fn open(image: &Path, access: Access, direct: Direct) -> Result<Stripe<Arc<FileDisk>>> {
    let block_size = {
        let looked = open_as(image, probe::UNTOLD_BLOCK, Access::ReadOnly, Direct::Never)?;
        probe::block_size_of(&looked)
    };
    open_as(image, block_size.unwrap_or(probe::UNTOLD_BLOCK), access, direct)
}

/// Makes disks those of a new stripe.
pub fn label_all(disks: &[PathBuf], uuid: [u8; 16], unit: u32) -> Result<()> {
    let options = DiskOptions { block_size: probe::UNTOLD_BLOCK, ..DiskOptions::default() };
    let opened = disks.iter().map(|path| disk(path, &options)).collect::<Result<Vec<_>>>()?;
    let bytes = StripeLabel::bytes_of(opened.iter().map(|disk| disk.geometry().bytes()), unit);
    ensure!(bytes > 0, "the smallest disk has no room for a unit of {}", crate::size::show(u64::from(unit)));
    let count = u16::try_from(disks.len()).context("so many disks")?;
    for (no, disk) in (0..).zip(&opened) {
        let label = StripeLabel { uuid, disk: no, disks: count, unit, bytes };
        let mut head = vec![0; usize::try_from(STRIPE_DATA)?];
        head[..STRIPE_LABEL].copy_from_slice(&label.encode());
        let size = usize::try_from(probe::UNTOLD_BLOCK)?;
        let writes: Vec<_> = (0..)
            .map(fstitch_core::BlockNo)
            .zip(head.chunks(size))
            .map(|(block, data)| fstitch_core::BlockWrite {
                block,
                kind: fstitch_core::BlockKind::Superblock,
                data,
            })
            .collect();
        disk.write(&writes)?;
        disk.flush()?;
    }
    Ok(())
}

/// How many disks a stripe has, and bytes of its unit; `None` if it is none.
pub fn described(image: &Path) -> Option<(u16, u32)> {
    let label = if is_one(image) { sorted(image).ok()?.1 } else { return None };
    Some((label.disks, label.unit))
}
