//! How models' prompts are written, read from the folders that the configuration names.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use crate::config::Config;
use crate::limits::TOKENIZER_BYTES_MAX;
use crate::policy::{Policy, Settings};
use crate::scan::Form;
use crate::template::{self, LeftOut};
use crate::vocabulary::Vocabulary;

/// By folder.
#[derive(Clone, Debug, Default)]
pub struct Forms {
    known: BTreeMap<PathBuf, Known>,
}

/// What was read in one folder.
#[derive(Clone, Debug)]
pub struct Known {
    /// How prompts are written.
    pub form: Arc<Form>,
    /// Why chats are not.
    pub no_chat: Option<template::Why>,
    /// Roles with which a match ends.
    pub left_out: Vec<template::LeftOut>,
}

impl Forms {
    /// Of all pools that choose by what engines say that they hold. Takes as long as the files are large, up to a second each.
    ///
    /// # Errors
    /// A folder that cannot be used, in words.
    pub fn read(config: &Config) -> Result<Forms, String> {
        let mut forms = Forms::default();
        let pools = config.pool.keys().map(|id| config.settings_for(id)).chain([config.routing.clone()]);
        for settings in pools.filter(wants_form) {
            if let Entry::Vacant(place) = forms.known.entry(settings.tokenizer.clone()) {
                let wrong = |why| format!("cannot use the `tokenizer` {}: {why}", settings.tokenizer.display());
                place.insert(read(&settings.tokenizer).map_err(wrong)?);
            }
        }
        Ok(forms)
    }

    /// That of a pool with these settings, if it has any.
    pub fn of(&self, settings: &Settings) -> Option<&Arc<Form>> {
        self.known.get(&settings.tokenizer).filter(|_| wants_form(settings)).map(|known| &known.form)
    }

    /// What was read, folder by folder.
    pub fn folders(&self) -> impl Iterator<Item = (&Path, &Known)> {
        self.known.iter().map(|(folder, known)| (folder.as_path(), known))
    }

    /// Says in the log what of the models' templates is not followed.
    pub fn say(&self) {
        for (folder, Known { no_chat, left_out, .. }) in self.folders() {
            let tokenizer = folder.display();
            if let Some(why) = no_chat {
                tracing::warn!(%tokenizer, %why, "chats of this model are known from what was sent where alone");
            }
            for LeftOut { role, why } in left_out {
                tracing::info!(%tokenizer, role, why, "with a message of this role a match ends");
            }
        }
    }
}

fn wants_form(settings: &Settings) -> bool {
    settings.looks_at(Policy::Precise) && !settings.tokenizer.as_os_str().is_empty()
}

/// `tokenizer.json` and the chat template of one folder.
fn read(folder: &Path) -> Result<Known, String> {
    let must = |name: &str| file(folder, name)?.ok_or_else(|| format!("there is no {name}; name the model's folder"));
    let vocabulary = Vocabulary::read(&must("tokenizer.json")?).map_err(|why| why.to_string())?;
    let (config, jinja) = (file(folder, "tokenizer_config.json")?, file(folder, "chat_template.jinja")?);
    let source = template::read(config.as_deref(), jinja.as_deref()).map_err(|why| why.to_string())?;
    let template::Reading { form, no_chat, left_out, .. } = template::form(&source, Arc::new(vocabulary));
    Ok(Known { form: Arc::new(form), no_chat, left_out })
}

fn file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, String> {
    let path = folder.join(name);
    match fs::metadata(&path) {
        Ok(file) if file.len() > TOKENIZER_BYTES_MAX as u64 => {
            Err(format!("{name} has more than {TOKENIZER_BYTES_MAX} bytes"))
        }
        Ok(_) => fs::read(&path).map(Some).map_err(|error| format!("{name}: {error}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{name}: {error}")),
    }
}
