//! How models' prompts are written, read from the folders that the configuration names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use serde_json::Value;

use crate::config::Config;
use crate::exchange::Wanted;
use crate::limits::{TOKENIZER_BYTES_MAX, TOOLSETS_MAX};
use crate::policy::{Policy, Settings};
use crate::scan::{Form, Toolset};
use crate::template::{self, LeftOut};
use crate::vocabulary::{self, Vocabulary};

/// The forms of all models, by folder.
#[derive(Clone, Debug, Default)]
pub struct Forms {
    known: BTreeMap<PathBuf, Known>,
    /// Folders with tokenizers of a kind that the front does not read.
    unlike: BTreeMap<PathBuf, vocabulary::Unreadable>,
}

/// What was read in one folder.
#[derive(Clone, Debug)]
pub struct Known {
    /// How prompts are written.
    pub form: Arc<Form>,
    /// The template, for tools that are met later.
    source: Arc<template::Source>,
    /// Why chats are not written in this form, if they are not.
    pub no_chat: Option<template::Why>,
    /// Messages at which a match ends.
    pub left_out: Vec<template::LeftOut>,
    /// Files by which engines may write prompts otherwise, and when.
    pub beside: Vec<(&'static str, &'static str)>,
}

impl Forms {
    /// Reads the forms of all pools that choose by KV events. Large files take up to a second each.
    ///
    /// # Errors
    /// A folder that cannot be used, in words.
    pub fn read(config: &Config) -> Result<Forms, String> {
        let mut forms = Forms::default();
        let pools = config.pool.keys().map(|id| config.settings_for(id)).chain([config.routing.clone()]);
        for settings in pools.filter(wants_form) {
            let folder = settings.tokenizer;
            if forms.known.contains_key(&folder) || forms.unlike.contains_key(&folder) {
                continue;
            }
            match read(&folder).map_err(|why| format!("cannot use the `tokenizer` {}: {why}", folder.display()))? {
                Ok(known) => drop(forms.known.insert(folder, known)),
                Err(why) => drop(forms.unlike.insert(folder, why)),
            }
        }
        Ok(forms)
    }

    /// Whether no pool has any.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The form of a pool with these settings, if it has one.
    pub fn of(&self, settings: &Settings) -> Option<&Arc<Form>> {
        self.known.get(&settings.tokenizer).filter(|_| wants_form(settings)).map(|known| &known.form)
    }

    /// A template of forms with this id of which chats with `tools` are yet to be learnt.
    pub fn source(&self, form: u64, tools: &[u8]) -> Option<Arc<template::Source>> {
        let lacks = |form: &Form| form.chat.is_some() && form.toolset(tools).is_none();
        let known = self.known.values().find(|known| known.form.id == form && lacks(&known.form))?;
        Some(Arc::clone(&known.source))
    }

    /// The same with one more set of tools, in forms of this id whose template is `source`: the id does not tell how it
    /// writes tools. If there are [`TOOLSETS_MAX`] sets, the one learnt first goes.
    pub fn learn(&self, form: u64, source: &Arc<template::Source>, toolset: Toolset) -> Forms {
        let mut forms = self.clone();
        let toolset = Arc::new(toolset);
        for known in forms.known.values_mut().filter(|known| known.form.id == form && known.source == *source) {
            let before = &known.form.toolsets;
            let kept = before.iter().skip((before.len() + 1).saturating_sub(TOOLSETS_MAX));
            let toolsets = kept.chain([&toolset]).cloned().collect();
            known.form = Arc::new(Form { toolsets, ..(*known.form).clone() });
        }
        forms
    }

    /// Keeps the forms of `before` that are the same, with the tools that they know and their memory, some MB for a
    /// vocabulary. Returns the sets of tools that were learnt of another template, and are to be learnt anew.
    pub fn keep(&mut self, before: &Forms) -> Vec<Wanted> {
        let mut anew = Vec::new();
        for known in self.known.values_mut() {
            let form = known.form.id;
            let alike = || before.known.values().filter(move |other| other.form.id == form);
            if let Some(same) = alike().find(|other| other.source == known.source) {
                (known.form, known.source) = (Arc::clone(&same.form), Arc::clone(&same.source));
            } else {
                let sets = alike().flat_map(|other| other.form.toolsets.iter());
                anew.extend(sets.map(|set| Wanted { form, tools: set.tools.clone() }));
            }
        }
        anew
    }

    /// How many sets of tools are known, and for how many of them chats can be written.
    pub fn toolsets(&self) -> (usize, usize) {
        let sets = || self.known.values().flat_map(|known| known.form.toolsets.iter());
        (sets().count(), sets().filter(|toolset| toolset.chat.is_some()).count())
    }

    /// What was read, folder by folder.
    pub fn folders(&self) -> impl Iterator<Item = (&Path, &Known)> {
        self.known.iter().map(|(folder, known)| (folder.as_path(), known))
    }

    /// Folders whose tokenizer is not read, and why.
    pub fn unlike(&self) -> impl Iterator<Item = (&Path, &vocabulary::Unreadable)> {
        self.unlike.iter().map(|(folder, why)| (folder.as_path(), why))
    }

    /// Logs which of the models' prompts cannot be written as engines do.
    pub fn say(&self) {
        for (folder, why) in self.unlike() {
            let tokenizer = folder.display();
            tracing::warn!(%tokenizer, %why, "KV events are of no use for this model: its prompts are routed as by policy warm");
        }
        for (folder, Known { no_chat, left_out, beside, .. }) in self.folders() {
            let tokenizer = folder.display();
            if let Some(why) = no_chat {
                tracing::warn!(%tokenizer, %why, "KV events are of no use for this model's chats: they are routed as by policy warm");
            }
            for (file, when) in beside {
                tracing::warn!(
                    %tokenizer,
                    file,
                    when,
                    "engines may write prompts by this file, which the front does not read; if they do, those prompts are routed as by policy warm"
                );
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

/// Reads `tokenizer.json` and the chat template of one folder, or says why they are of no use.
fn read(folder: &Path) -> Result<Result<Known, vocabulary::Unreadable>, String> {
    let must = |name: &str| file(folder, name)?.ok_or_else(|| format!("there is no {name}; name the model's folder"));
    let vocabulary = match Vocabulary::read(&must("tokenizer.json")?) {
        Err(why) if why.is_of_its_kind() => return Ok(Err(why)),
        read => read.map_err(|why| why.to_string())?,
    };
    let (config, jinja) = (file(folder, "tokenizer_config.json")?, file(folder, "chat_template.jinja")?);
    let source = template::read(config.as_deref(), jinja.as_deref());
    let source = match file(folder, "special_tokens_map.json")? {
        Some(map) => source.and_then(|source| source.with_tokens(&map)),
        None => source,
    };
    let source = source.map_err(|why| why.to_string())?;
    let beside = beside(folder, &source)?;
    let template::Reading { form, no_chat, left_out, .. } = template::form(&source, Arc::new(vocabulary));
    Ok(Ok(Known { form: Arc::new(form), source: Arc::new(source), no_chat, left_out, beside }))
}

/// What else in the folder vLLM, Transformers or mistral-common may read.
fn beside(folder: &Path, source: &template::Source) -> Result<Vec<(&'static str, &'static str)>, String> {
    let mut found = Vec::new();
    let processors = file(folder, "chat_template.json")?.and_then(|json| serde_json::from_slice::<Value>(&json).ok());
    let processors = processors.as_ref().and_then(|json| json["chat_template"].as_str());
    if processors.is_some_and(|template| !source.is(template)) {
        found.push(("chat_template.json", "the model takes images or sound, and a chat has no tools"));
    }
    for (name, when) in [
        ("additional_chat_templates/tool_use.jinja", "a chat has tools"),
        ("tekken.json", "they run with --tokenizer-mode mistral, or choose that themselves"),
    ] {
        if folder.join(name).exists() {
            found.push((name, when));
        }
    }
    Ok(found)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Chat;
    use crate::vocabulary::Lead;

    /// Of folders with these templates, which write chats without tools alike.
    fn forms(templates: &[&str]) -> Forms {
        let known = |template: &&str| Known {
            form: Arc::new(Form {
                id: 1,
                chat: Some(Chat::default()),
                vocabulary: Arc::new(Vocabulary::new(&[], &[], Lead::Nowhere, &[])),
                toolsets: Arc::default(),
            }),
            source: Arc::new(template::read(None, Some(template.as_bytes())).unwrap()),
            no_chat: None,
            left_out: Vec::new(),
            beside: Vec::new(),
        };
        let folders = (0..).map(|folder: u32| PathBuf::from(folder.to_string()));
        Forms { known: folders.zip(templates.iter().map(known)).collect(), unlike: BTreeMap::new() }
    }

    fn set(tools: &[u8]) -> Toolset {
        Toolset { tools: tools.into(), chat: None }
    }

    #[test]
    fn what_is_the_same_is_kept_over_reloads() {
        let first = forms(&["a"]);
        let learnt = first.learn(1, &first.source(1, b"[]").unwrap(), set(b"[]"));
        let (mut second, mut third) = (forms(&["a"]), forms(&["a"]));
        assert!(second.keep(&learnt).is_empty() && third.keep(&second).is_empty());
        let only = |forms: &Forms| forms.known.values().next().unwrap().clone();
        assert!(Arc::ptr_eq(&only(&first).form.vocabulary, &only(&third).form.vocabulary));
        assert!(Arc::ptr_eq(&only(&first).source, &only(&third).source));
        assert_eq!((third.toolsets(), third.source(1, b"[]")), ((1, 0), None));
    }

    /// The id is that of chats without tools: whoever learnt a set of the template of before knows nothing of this one.
    #[test]
    fn what_another_template_writes_is_learnt_anew() {
        let before = forms(&["a"]);
        let source = before.source(1, b"[]").unwrap();
        let before = before.learn(1, &source, set(b"[]"));
        let mut after = forms(&["b"]);
        assert_eq!(after.keep(&before), [Wanted { form: 1, tools: b"[]"[..].into() }]);
        assert_eq!(after.toolsets(), (0, 0));
        // What was being learnt meanwhile comes too late.
        assert_eq!(after.learn(1, &source, set(b"[]")).toolsets(), (0, 0));
        let anew = after.source(1, b"[]").unwrap();
        assert_ne!(anew, source);
        assert_eq!(after.learn(1, &anew, set(b"[]")).toolsets(), (1, 0));
    }

    #[test]
    fn each_template_of_a_form_learns_for_itself() {
        let mut forms = forms(&["a", "b", "a"]);
        for known in [2, 3] {
            let source = forms.source(1, b"[]").unwrap();
            forms = forms.learn(1, &source, set(b"[]"));
            assert_eq!(forms.toolsets(), (known, 0));
        }
        assert_eq!(forms.source(1, b"[]"), None);
    }

    #[test]
    fn a_tokenizer_of_another_kind_is_no_reason_not_to_start() {
        let folder = std::env::temp_dir().join(format!("warmfront-unlike-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut config = Config::default();
        config.routing.policy = Policy::Precise;
        config.routing.tokenizer = folder.clone();
        let with = |file: &str| {
            fs::write(folder.join("tokenizer.json"), file).unwrap();
            Forms::read(&config)
        };
        let forms = with(r#"{"normalizer": {"type": "Lowercase"}, "model": {"type": "BPE", "vocab": {}}}"#).unwrap();
        assert!(forms.of(&config.routing).is_none());
        let said: Vec<String> = forms.unlike().map(|(_, why)| why.to_string()).collect();
        assert!(said.len() == 1 && said[0].contains("Lowercase"), "{said:?}");
        assert!(with("{").unwrap_err().contains("cannot be read"));
        fs::remove_file(folder.join("tokenizer.json")).unwrap();
        assert!(Forms::read(&config).unwrap_err().contains("there is no tokenizer.json"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_by_which_engines_may_write_otherwise_are_named() {
        let folder = std::env::temp_dir().join(format!("warmfront-forms-{}", std::process::id()));
        let extra = folder.join("additional_chat_templates");
        fs::create_dir_all(&extra).unwrap();
        let source = template::read(None, Some(b"a")).unwrap();
        let names = || beside(&folder, &source).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        fs::write(folder.join("chat_template.json"), r#"{"chat_template": "a"}"#).unwrap();
        assert!(names().is_empty());
        fs::write(folder.join("chat_template.json"), r#"{"chat_template": "b"}"#).unwrap();
        fs::write(extra.join("tool_use.jinja"), "c").unwrap();
        fs::write(folder.join("tekken.json"), "{}").unwrap();
        assert_eq!(names(), ["chat_template.json", "additional_chat_templates/tool_use.jinja", "tekken.json"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
