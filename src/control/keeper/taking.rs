//! Another configuration, or another list of engines, in the place of those in use: one at a time. Whoever reads files
//! for that holds nobody up who does not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_blocking;

use super::Keeper;
use crate::config::{Config, Log, Upstream};
use crate::control::access::{AccessLog, Prepared};
use crate::control::edit::{self, Edit, Refused};
use crate::control::forms::Forms;
use crate::control::member::Member;
use crate::control::reload::{self, Changes, Source};
use crate::control::{acquaintance, names};
use crate::exchange::Rules;

/// The engines' keys, by place.
type Keys = Vec<Option<Arc<str>>>;

/// What files say.
struct Read {
    config: Config,
    keys: Keys,
    forms: Forms,
    /// Where the access log goes, if that is another place.
    access: Option<Prepared>,
}

/// For a thread of its own: disks may not answer.
fn read(source: &dyn Source, access: &AccessLog, before: &Log) -> Result<Read, String> {
    let config = source.load()?;
    let keys = reload::keys(&config)?;
    let forms = Forms::read(&config)?;
    let told = |log: &Log| (log.access.clone(), log.access_format, log.receipts);
    let access = (told(before) != told(&config.log)).then(|| access.prepare(&config.log)).transpose()?;
    Ok(Read { config, keys, forms, access })
}

impl Keeper {
    /// Takes the configuration that `source` has now, if there is nothing wrong with it.
    ///
    /// # Errors
    /// All that is wrong with it, in words; nothing has changed then.
    pub async fn reload(self: &Arc<Self>, source: &Arc<dyn Source>) -> Result<Changes, String> {
        self.reloads.begins();
        let outcome = self.read_anew(source).await;
        self.reloads.ended(outcome.is_ok());
        outcome
    }

    async fn read_anew(self: &Arc<Self>, source: &Arc<dyn Source>) -> Result<Changes, String> {
        let alone = Arc::clone(&self.reading).lock_owned().await;
        let (before, from) = (self.config(), Arc::clone(source));
        // Who asked for it may leave: nobody else reads before this has ended, lest threads pile up at a disk that is
        // gone.
        let (access, log) = (Arc::clone(&self.access), before.log.clone());
        let reading = spawn_blocking(move || (read(&*from, &access, &log), alone));
        let (read, _alone) = reading.await.map_err(|error| error.to_string())?;
        let Read { config, keys, forms, access } = read?;
        forms.say();
        let read = Arc::new(config);
        let changing = self.changing.lock().await;
        let (config, keys) = self.edited_since(&before, &read, keys);
        let changes = self.take(config, keys, Some((forms, access))).await?;
        self.read.store(Arc::clone(&read));
        drop(changing);
        // It looks whether files can be written.
        let source = Arc::clone(source);
        let _ = spawn_blocking(move || source.in_use(&read)).await;
        Ok(changes)
    }

    /// What was read, with what has been changed by hand since then: who drained an engine meanwhile did not mean the
    /// file that was being read.
    fn edited_since(&self, before: &Config, read: &Arc<Config>, keys: Keys) -> (Arc<Config>, Keys) {
        let mut edited = (**read).clone();
        edit::redo(&before.upstream, &self.config().upstream, &mut edited.upstream);
        let edited = (edited.upstream != read.upstream).then(|| edited.checked().ok()).flatten();
        // Where both together make no sense it is the file that counts.
        let Some(edited) = edited else { return (Arc::clone(read), keys) };
        let fleet = self.fleet();
        let key_of = |upstream: &Upstream| {
            let mut read = read.upstream.iter().zip(&keys);
            let added = || fleet.members().iter().find(|member| member.upstream.is_same(upstream));
            let key = read.find(|(read, _)| read.is_same(upstream)).map(|(_, key)| key);
            key.or_else(|| added().map(|member| &member.key)).cloned().flatten()
        };
        let keys = edited.upstream.iter().map(key_of).collect();
        (Arc::new(edited), keys)
    }

    /// Changes the list of engines, until the configuration is read anew. No file is read but the key of an engine that
    /// is added: who drains an engine because a disk is gone needs it now. Forms follow pools, which no edit changes.
    ///
    /// # Errors
    /// What is wrong with the change, in words; nothing has changed then.
    pub async fn edit(self: &Arc<Self>, edit: &Edit) -> Result<Changes, Refused> {
        // Before others have to wait for this one.
        let key = self.added_key(edit).await?;
        let _alone = self.changing.lock().await;
        let mut config = (*self.config()).clone();
        edit.apply(&mut config.upstream)?;
        let config = config.checked().map_err(|invalid| Refused::Wrong(invalid.to_string()))?;
        let keys = reload::known_keys(&config, self.fleet().members(), key.as_ref());
        self.take(Arc::new(config), keys, None).await.map_err(Refused::Wrong)
    }

    /// The key of the engine that is added, where there is one: read by a thread of its own, and by one at a time, since
    /// disks may not answer.
    async fn added_key(&self, edit: &Edit) -> Result<Option<Arc<str>>, Refused> {
        match edit {
            Edit::Add(added) if !added.api_key_file.as_os_str().is_empty() => {}
            _ => return Ok(None),
        }
        let alone = Arc::clone(&self.adding).lock_owned().await;
        let (edit, read) = (edit.clone(), self.read.load_full());
        let reading = spawn_blocking(move || (edit.key(&read.upstream), alone));
        let (key, _alone) = reading.await.map_err(|error| Refused::Wrong(error.to_string()))?;
        key
    }

    /// `read`: what else files say and lead to; without them all that stays as it is.
    async fn take(
        self: &Arc<Self>,
        config: Arc<Config>,
        keys: Keys,
        read: Option<(Forms, Option<Prepared>)>,
    ) -> Result<Changes, String> {
        let before = self.config();
        let (forms, access) = read.map_or((None, None), |(forms, access)| (Some(forms), access));
        let mut changes = Changes::between(&before, &config, &self.started);
        // Before anything changes: a snapshot of engines without addresses would refuse every request.
        let before: Vec<Upstream> = self.fleet().members().iter().map(|member| member.upstream.clone()).collect();
        let new = config.upstream.iter().filter(|upstream| !before.iter().any(|known| known.is_same(upstream)));
        let addresses = names::first_lookups(new.map(|upstream| (upstream.label(), upstream.clone())).collect()).await;
        let lists = acquaintance::first_lists(&config, &keys, &addresses).await;
        let now = Instant::now();
        let mut fleet = self.fleet();
        let stays = |member: &Member| {
            member.now.is_some() && config.upstream.iter().any(|upstream| upstream.is_same(&member.upstream))
        };
        if addresses.is_empty() && !config.upstream.is_empty() && !fleet.members().iter().any(stays) {
            return Err("name servers know none of the engines".into());
        }
        let forms = match forms {
            Some(mut read) => {
                self.outdated().extend(read.keep(&fleet.forms));
                Arc::new(read)
            }
            None => Arc::clone(&fleet.forms),
        };
        let keys_before: HashMap<usize, _> =
            fleet.members().iter().map(|known| (known.place, known.key.clone())).collect();
        (changes.added, changes.removed) = fleet.reconfigure(Arc::clone(&config), keys, forms, now);
        changes.restart.extend(fleet.waits_for_restart());
        self.reloads.wait_for_restart(changes.restart.len());
        for (label, addresses) in addresses {
            let place = fleet.members().iter().find(|member| *member.name == *label).map(|member| member.place);
            if let Some(place) = place {
                fleet.resolved(place, addresses, now);
            }
        }
        fleet.first_learnt(lists);
        // An engine that refused the key of before is not to wait for its turn.
        let rekeyed = |member: &&Member| keys_before.get(&member.place).is_some_and(|before| *before != member.key);
        for member in fleet.members().iter().filter(rekeyed) {
            member.models_wanted.notify_one();
            changes.rekeyed.push(member.name.to_string());
        }
        drop(fleet);
        self.config.store(Arc::clone(&config));
        if let Some(access) = access {
            self.access.take(access);
        }
        self.published.publish_rules(Rules::from(&*config));
        self.publish_now();
        self.watch();
        Ok(changes)
    }
}
