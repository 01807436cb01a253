// Annotations that state which lock guards a field and which locks a function needs. Clang checks them
// (-Wthread-safety); other compilers ignore them. base/mutex.h has annotated locks; std::mutex has none and is not
// checked.
#pragma once

#if defined(__clang__)
#define MR_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MR_THREAD_ATTRIBUTE(x)
#endif

/// A field or global variable that may be read and written only while this lock is held.
#define MR_GUARDED_BY(mutex) MR_THREAD_ATTRIBUTE(guarded_by(mutex))
/// A pointer: what it points to is guarded by this lock.
#define MR_PT_GUARDED_BY(mutex) MR_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
/// A function whose caller holds these locks, before and after the call. For a lambda, written after its parameters.
#define MR_REQUIRES(...) MR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// A function whose caller must not hold these locks, because it acquires them.
#define MR_EXCLUDES(...) MR_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
/// A function that acquires these locks and returns with them held; or that releases them.
#define MR_ACQUIRE(...) MR_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MR_RELEASE(...) MR_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
/// A class that is a lock; or one whose objects hold a lock for their lifetime.
#define MR_CAPABILITY(name) MR_THREAD_ATTRIBUTE(capability(name))
#define MR_SCOPED_CAPABILITY MR_THREAD_ATTRIBUTE(scoped_lockable)
/// A function that clang does not check; a comment states why it is correct.
#define MR_NO_THREAD_SAFETY_ANALYSIS MR_THREAD_ATTRIBUTE(no_thread_safety_analysis)
