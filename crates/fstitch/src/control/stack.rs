//! A stack of volumes as `status` shows it, and its drawing.

use serde::{Deserialize, Serialize};

/// A stack: devices, and the volumes on them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct StackStatus {
    /// The stack file.
    pub file: String,
    /// The volume that was asked about.
    pub volume: String,
    /// Bytes of blocks that are not on the media yet.
    pub dirty_bytes: u64,
    /// The devices, in the order of the file.
    pub devices: Vec<DeviceStatus>,
    /// The volumes, each behind those that it is in.
    pub volumes: Vec<VolumeStatus>,
}

/// A device of a stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// The image file or block device, or the file in `volume`.
    pub path: String,
    /// Where it starts in that, in bytes.
    pub offset_bytes: u64,
    /// The number of the partition that it is, if it was named so.
    pub partition: Option<u32>,
    /// The volume of the stack whose file it is, if it is one.
    pub volume: Option<String>,
}

/// A volume of a stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// The device that it is on.
    pub device: String,
    /// The device of its journal, if that is not in the volume itself.
    pub journal: Option<String>,
    /// The format; empty before it was opened.
    pub format: String,
    /// The consistency mechanism in force; before it was opened the one asked for, empty if none was.
    pub consistency: String,
    /// Whether it accepts no changes because it was mounted so.
    pub read_only: bool,
    /// Where it is mounted or is to be, if anywhere.
    pub mountpoint: Option<String>,
    /// What becomes of it.
    pub state: VolumeState,
}

/// What becomes of a volume of a stack.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// It is not open yet.
    #[default]
    Planned,
    /// It is open, and mounted if it has a mount point.
    Open,
    /// Its mount is gone; it stays open for the volumes in it.
    Kept,
    /// It is closed; everything is on the medium.
    Closed,
}

impl StackStatus {
    /// The tree of the stack, for people.
    pub fn draw(&self) -> String {
        let dirty = match self.dirty_bytes {
            0 => String::new(),
            bytes => format!(", not on the media yet: {}", crate::size::show(bytes)),
        };
        let mut drawn = format!("stack {}{dirty}\n", self.file);
        for device in self.devices.iter().filter(|device| device.volume.is_none()) {
            drawn += &format!("{}: {}{}\n", device.name, device.path, part(device));
            self.draw_on(&mut drawn, &device.name, "");
        }
        drawn
    }

    /// What is on a device: a volume with everything in it, or a journal. `margin` is what is drawn before each line.
    fn draw_on(&self, drawn: &mut String, device: &str, margin: &str) {
        for volume in &self.volumes {
            if volume.journal.as_deref() == Some(device) {
                *drawn += &format!("{margin}└─ journal of {}\n", volume.name);
            }
            if volume.device == device {
                *drawn += &format!("{margin}└─ {}\n", volume.describe());
                self.draw_in(drawn, &volume.name, &format!("{margin}   "));
            }
        }
    }

    /// The devices in a volume.
    fn draw_in(&self, drawn: &mut String, volume: &str, margin: &str) {
        let inside = self.devices.iter().filter(|device| device.volume.as_deref() == Some(volume));
        let mut inside = inside.peekable();
        while let Some(device) = inside.next() {
            let (branch, trunk) =
                if inside.peek().is_some() { ("├─", "│  ") } else { ("└─", "   ") };
            *drawn += &format!("{margin}{branch} {}: file {} of {volume}\n", device.name, device.path);
            self.draw_on(drawn, &device.name, &format!("{margin}{trunk}"));
        }
    }

    /// The mount points that are still served, each behind those that must be unmounted before it.
    pub fn to_unmount(&self) -> Vec<String> {
        let open = self.volumes.iter().rev().filter(|volume| volume.state == VolumeState::Open);
        open.filter_map(|volume| volume.mountpoint.clone()).collect()
    }

    /// The volumes in `name`, directly or by way of others, that are not closed.
    pub fn open_in(&self, name: &str) -> Vec<&VolumeStatus> {
        let mut found: Vec<&VolumeStatus> = Vec::new();
        for volume in &self.volumes {
            let holds = |device: &str| {
                let device = self.devices.iter().find(|known| known.name == device);
                device
                    .and_then(|device| device.volume.as_deref())
                    .is_some_and(|outer| outer == name || found.iter().any(|inner| inner.name == outer))
            };
            let inside = holds(&volume.device) || volume.journal.as_deref().is_some_and(holds);
            if inside && volume.state != VolumeState::Closed {
                found.push(volume);
            }
        }
        found
    }
}

fn part(device: &DeviceStatus) -> String {
    match (device.partition, device.offset_bytes) {
        (Some(number), _) => format!(", partition {number}"),
        (None, 0) => String::new(),
        (None, offset) => format!(", from byte {offset} on"),
    }
}

impl VolumeStatus {
    fn describe(&self) -> String {
        let mut said = format!("volume {}: ", self.name);
        for word in [&self.format, &self.consistency] {
            if !word.is_empty() {
                said += &format!("{word}, ");
            }
        }
        said += if self.read_only { "read-only" } else { "read-write" };
        if let Some(journal) = &self.journal {
            said += &format!(", journal on {journal}");
        }
        let at = self.mountpoint.as_deref();
        let place = match (self.state, at) {
            (VolumeState::Planned, Some(at)) => format!(", to be mounted on {at}"),
            (VolumeState::Open, Some(at)) => format!(", mounted on {at}"),
            (VolumeState::Kept, _) => ", unmounted, and open for what is in it".to_owned(),
            (VolumeState::Closed, _) => ", closed".to_owned(),
            (VolumeState::Planned | VolumeState::Open, None) => ", not mounted".to_owned(),
        };
        said + &place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure_6() -> StackStatus {
        let device = |name: &str, path: &str, volume: Option<&str>| DeviceStatus {
            name: name.into(),
            path: path.into(),
            volume: volume.map(Into::into),
            ..DeviceStatus::default()
        };
        let volume = |name: &str, device: &str, journal: Option<&str>, words: (&str, &str)| VolumeStatus {
            name: name.into(),
            device: device.into(),
            journal: journal.map(Into::into),
            format: words.0.into(),
            consistency: words.1.into(),
            mountpoint: Some(format!("/srv/{name}")),
            state: VolumeState::Open,
            ..VolumeStatus::default()
        };
        StackStatus {
            file: "/srv/stack.toml".into(),
            volume: "home".into(),
            dirty_bytes: 0,
            devices: vec![
                device("disk", "/srv/disk.img", None),
                device("home image", "/home.img", Some("root")),
                device("home journal", "/home.journal", Some("root")),
            ],
            volumes: vec![
                volume("root", "disk", None, ("ext2", "soft")),
                volume("home", "home image", Some("home journal"), ("ext3", "ordered")),
            ],
        }
    }

    #[test]
    fn the_drawing_of_the_document() {
        let document = include_str!("../../../../docs/stack.md");
        assert!(document.contains(&figure_6().draw()), "{}", figure_6().draw());
    }

    #[test]
    fn parts_and_states_are_drawn() {
        let mut stack = figure_6();
        stack.devices[0].partition = Some(2);
        stack.volumes[0].state = VolumeState::Kept;
        stack.dirty_bytes = 4096;
        let drawn = stack.draw();
        assert!(drawn.contains("\ndisk: /srv/disk.img, partition 2\n"), "{drawn}");
        assert!(drawn.contains("read-write, unmounted, and open for what is in it\n"), "{drawn}");
        assert!(drawn.starts_with("stack /srv/stack.toml, not on the media yet: 4.0 KiB\n"), "{drawn}");
        stack.devices[0].partition = None;
        stack.devices[0].offset_bytes = 512;
        stack.volumes[0].state = VolumeState::Planned;
        assert!(stack.draw().contains(", from byte 512 on\n"));
        assert!(stack.draw().contains(", to be mounted on /srv/root\n"));
    }

    #[test]
    fn what_must_go_first() {
        let mut stack = figure_6();
        let names = |found: Vec<&VolumeStatus>| -> Vec<String> {
            found.into_iter().map(|volume| volume.name.clone()).collect()
        };
        assert_eq!(stack.to_unmount(), ["/srv/home", "/srv/root"]);
        assert_eq!(names(stack.open_in("root")), ["home"]);
        assert!(stack.open_in("home").is_empty());
        stack.volumes[0].device = "home image".into();
        stack.volumes[1].state = VolumeState::Closed;
        assert_eq!(stack.to_unmount(), ["/srv/root"]);
        assert!(!names(stack.open_in("root")).contains(&"home".to_owned()));
    }
}
