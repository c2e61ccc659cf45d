//! Makes the table of loops of an instruction set.

#![allow(unsafe_code, reason = "a function compiled with more instructions than its caller is called unsafely")]

/// Compiles each loop of [`super::wide`] with the instructions of `$isa`, and makes the table of them for CPUs that
/// have all named features. `$isa` is constructed only here.
macro_rules! kernel {
    ($name:literal, $isa:ident, $has:ident, $features:tt) => {
        /// The table of these loops, if this CPU has them.
        pub fn available() -> Option<&'static super::Kernel> {
            static KERNEL: super::Kernel = super::Kernel { name: $name, text_run, unescape, token_ids, skip, hash };
            super::table::kernel!(@has $has $features).then_some(&KERNEL)
        }

        super::table::kernel!(@loop $isa $features text_run(bytes: &[u8]) -> usize);
        super::table::kernel!(@loop $isa $features unescape(bytes: &[u8], out: &mut [u8]) -> (usize, usize));
        super::table::kernel!(@loop $isa $features token_ids(bytes: &[u8], out: &mut [u8]) -> (usize, usize));
        super::table::kernel!(@loop $isa $features skip(state: &mut super::Skip, bytes: &[u8]) -> Option<usize>);
        super::table::kernel!(@loop $isa $features
            hash(lanes: &mut super::Lanes, bytes: &[u8], steps: bool, slots: &mut [u64]) -> ());
    };
    (@has $has:ident [$($feature:tt),+]) => {
        (true $(&& std::arch::$has!($feature))+)
    };
    (@loop $isa:ident [$($feature:tt),+] $name:ident($($argument:ident: $type:ty),+) -> $answer:ty) => {
        fn $name($($argument: $type),+) -> $answer {
            $(#[target_feature(enable = $feature)])+
            fn compiled($($argument: $type),+) -> $answer {
                super::wide::$name($isa(()), $($argument),+)
            }
            // SAFETY: only the table names this function, and `available` returns the table only if the CPU has
            // every feature of the list.
            unsafe { compiled($($argument),+) }
        }
    };
}
pub(super) use kernel;
