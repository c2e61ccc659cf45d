//! Another configuration, or another list of engines, in the place of those in use: one at a time. Whoever reads files
//! for that holds nobody up who does not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_blocking;

use super::Keeper;
use crate::config::{Config, Upstream};
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
}

/// For a thread of its own: disks may not answer.
fn read(source: &dyn Source) -> Result<Read, String> {
    let config = source.load()?;
    let keys = reload::keys(&config)?;
    let forms = Forms::read(&config)?;
    Ok(Read { config, keys, forms })
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
        let reading = spawn_blocking(move || (read(&*from), alone));
        let (read, _alone) = reading.await.map_err(|error| error.to_string())?;
        let Read { config, keys, forms } = read?;
        forms.say();
        let read = Arc::new(config);
        let changing = self.changing.lock().await;
        let (config, keys) = self.edited_since(&before, &read, keys);
        let changes = self.take(config, keys, Some(forms)).await?;
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
        let _alone = self.changing.lock().await;
        let mut config = (*self.config()).clone();
        edit.names_known_keys(&self.read.load().upstream)?;
        edit.apply(&mut config.upstream)?;
        let config = config.checked().map_err(|invalid| Refused::Wrong(invalid.to_string()))?;
        let keys = reload::missing_keys(&config, self.fleet().members()).map_err(Refused::Wrong)?;
        self.take(Arc::new(config), keys, None).await.map_err(Refused::Wrong)
    }

    /// `forms`: those in use, where there are none.
    async fn take(self: &Arc<Self>, config: Arc<Config>, keys: Keys, forms: Option<Forms>) -> Result<Changes, String> {
        let before = self.config();
        let access = (before.log != config.log).then(|| self.access.prepare(&config.log)).transpose()?;
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
