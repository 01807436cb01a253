// Which lock guards a field and which a function needs, in words that clang checks (-Wthread-safety). Other compilers
// see nothing. base/mutex.h has the locks; std::mutex has no such words and cannot be checked.
#pragma once

#if defined(__clang__)
#define MR_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MR_THREAD_ATTRIBUTE(x)
#endif

/// A field or global variable: read and written with this lock held alone.
#define MR_GUARDED_BY(mutex) MR_THREAD_ATTRIBUTE(guarded_by(mutex))
/// A pointer: so is what it points to.
#define MR_PT_GUARDED_BY(mutex) MR_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
/// A function: called with these locks held, which are held when it returns. Of a lambda, behind its parameters.
#define MR_REQUIRES(...) MR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// A function: called without these locks, which it takes itself.
#define MR_EXCLUDES(...) MR_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
/// A function takes the locks and keeps them; or lets go of them.
#define MR_ACQUIRE(...) MR_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MR_RELEASE(...) MR_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
/// A class that is a lock; or that holds one for as long as it lives.
#define MR_CAPABILITY(name) MR_THREAD_ATTRIBUTE(capability(name))
#define MR_SCOPED_CAPABILITY MR_THREAD_ATTRIBUTE(scoped_lockable)
/// A function that is not checked; a comment says what holds instead.
#define MR_NO_THREAD_SAFETY_ANALYSIS MR_THREAD_ATTRIBUTE(no_thread_safety_analysis)
