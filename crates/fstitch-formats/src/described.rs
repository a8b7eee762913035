//! What a volume is, for people and programs.

use serde_json::{Map, Value};

/// One thing of a volume: for people by a name and a text, which may be empty, for programs by a key and a value.
#[derive(Clone, Debug)]
pub struct Field {
    /// What people call it; empty where they are not shown it.
    pub name: &'static str,
    /// What they are shown.
    pub text: String,
}

/// What a volume is: two views of the same.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// For people: lines, in their order.
    pub fields: Vec<Field>,
    /// For people: a table of parts, headings first, if they were asked for.
    pub parts: Vec<String>,
    /// For programs. Keys are a contract.
    pub values: Map<String, Value>,
}

impl Description {
    /// A volume without parts.
    pub(crate) fn of(
        fields: impl IntoIterator<Item = (&'static str, String)>,
        values: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let fields = fields.into_iter().map(|(name, text)| Field { name, text }).collect();
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { fields, parts: Vec::new(), values }
    }
}
