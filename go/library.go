// Package millrace runs language models larger than memory, and reads files at the disk's speed, by Millrace's C library.
// It needs no C compiler and no cgo: the library (libmillrace.so.0, millrace.dll) is loaded when the program runs.
//
// What *Open made, Close frees. An Engine may be used by many goroutines at once; so may a Loader. A Pool is for one
// goroutine at a time. Nothing may be closed while another goroutine is in a call that uses it. Errors are *Error.
package millrace

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Code says what kind of error it is.
type Code int32

// Codes of the C API (millrace_status).
const (
	InvalidArgument Code = iota + 1 // the caller's words are off
	NotFound                        // a file or a key is missing
	Corrupt                         // bytes that cannot be what they claim to be
	Unsupported                     // this version cannot do it
	IOError                         // the disk failed
	OutOfBudget                     // does not fit; the message names what would
	Cancelled
	Unavailable // not now: too much waits already, or it is shutting down
	Internal    // a bug in Millrace, caught without a crash
)

var codeNames = []string{"ok", "invalid argument", "not found", "corrupt", "unsupported", "I/O error", "out of budget",
	"cancelled", "unavailable", "internal"}

func (c Code) String() string {
	if c < 0 || int(c) >= len(codeNames) {
		return fmt.Sprintf("code %d", int32(c))
	}
	return codeNames[c]
}

// Error is what went wrong and what to do, in one line.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// The C API's functions (include/millrace.h). A pointer to a pointer that the library fills in is an *unsafe.Pointer;
// where that is a device's address, a *uintptr.
var c struct {
	version      func() unsafe.Pointer
	lastError    func() unsafe.Pointer
	free         func(memory unsafe.Pointer)
	open         func(options *cOptions, engine *unsafe.Pointer) int32
	close        func(engine unsafe.Pointer)
	plan         func(options *cOptions, form int32, plan *unsafe.Pointer) int32
	enginePlan   func(engine unsafe.Pointer, form int32, plan *unsafe.Pointer) int32
	tokenize     func(engine unsafe.Pointer, text *byte, length uintptr, special int32, ids *unsafe.Pointer, count *uintptr) int32
	detokenize   func(engine unsafe.Pointer, ids *int32, count uintptr, special int32, text *unsafe.Pointer, length *uintptr) int32
	chatTokens   func(engine unsafe.Pointer, messages, tools, variables *byte, ids *unsafe.Pointer, count *uintptr) int32
	generate     func(engine unsafe.Pointer, request *cRequest, callback, user uintptr, result *cResult) int32
	embed        func(engine unsafe.Pointer, texts **byte, count uintptr, pooling int32, vectors *unsafe.Pointer, dimensions *uintptr) int32
	cancel       func(engine unsafe.Pointer)
	readCounters func(engine unsafe.Pointer, counters *cCounters) int32

	initOptions, initRequest, initResult, initCounters   func(value unsafe.Pointer, size uintptr)
	initLoaderOptions, initPoolOptions, initPoolCounters func(value unsafe.Pointer, size uintptr)
	loaderOpen                                           func(path *byte, options *cLoaderOptions, loader *unsafe.Pointer) int32
	loaderClose                                          func(loader unsafe.Pointer)
	loaderBackend, loaderDeviceBackend                   func(loader unsafe.Pointer) unsafe.Pointer
	loaderFileBytes                                      func(loader unsafe.Pointer) uint64
	loaderEnqueue                                        func(loader unsafe.Pointer, offset, bytes uint64, to unsafe.Pointer, whole int32, read *uint64) int32
	loaderEnqueueDevice                                  func(loader unsafe.Pointer, offset, bytes uint64, to uintptr, read *uint64) int32
	loaderSubmit                                         func(loader unsafe.Pointer) int32
	loaderPoll                                           func(loader unsafe.Pointer, read uint64, done *int32) int32
	loaderWait                                           func(loader unsafe.Pointer, read uint64) int32
	loaderAllocate                                       func(offset, bytes uint64, block, begin *unsafe.Pointer) int32
	poolOpen                                             func(loader unsafe.Pointer, pieces *Piece, count uintptr, options *cPoolOptions, pool *unsafe.Pointer) int32
	poolClose                                            func(pool unsafe.Pointer)
	poolUnmap                                            func(pool unsafe.Pointer, bytes uint64, unmapped *uint64) int32
	poolMap                                              func(pool unsafe.Pointer, bytes uint64) int32
	poolPrefetch                                         func(pool unsafe.Pointer, pieces *uint32, count uintptr) int32
	poolAcquire                                          func(pool unsafe.Pointer, piece uint32, data *unsafe.Pointer) int32
	poolAcquireDevice                                    func(pool unsafe.Pointer, piece uint32, data *uintptr) int32
	poolRelease                                          func(pool unsafe.Pointer, piece uint32) int32
	poolReleaseOn                                        func(pool unsafe.Pointer, piece uint32, stream uintptr) int32
	poolReadCounters                                     func(pool unsafe.Pointer, counters *cPoolCounters) int32
	dequantize                                           func(kind uint32, data unsafe.Pointer, bytes uintptr, rows, cols int64, out *float32, threads int32) int32
	gemv                                                 func(kind uint32, weight unsafe.Pointer, bytes uintptr, rows, cols int64, x, y *float32, threads int32) int32
}

var (
	loading   sync.Mutex
	loaded    bool
	onText    uintptr // the one callback of all answers
	libraryOf string
)

// Load loads the library from `path`; "": from MILLRACE_LIBRARY of the environment, else where the system finds
// libmillrace.so.0 (millrace.dll). Every function here does so by itself with "" where no one has; a second library is
// never loaded.
func Load(path string) error {
	loading.Lock()
	defer loading.Unlock()
	if loaded {
		if path != "" && path != libraryOf {
			return &Error{InvalidArgument, fmt.Sprintf("the library %s is loaded already; %s is not", libraryOf, path)}
		}
		return nil
	}
	if path == "" {
		path = os.Getenv("MILLRACE_LIBRARY")
	}
	if path == "" {
		path = libraryName
	}
	handle, err := openLibrary(path)
	if err != nil {
		return &Error{NotFound, fmt.Sprintf("Millrace's library cannot be loaded (%v): build it with 'make' and set "+
			"MILLRACE_LIBRARY to its path, or install Millrace's package", err)}
	}
	for _, function := range []struct {
		name string
		to   any
	}{
		{"version", &c.version}, {"last_error", &c.lastError}, {"free", &c.free},
		{"open", &c.open}, {"close", &c.close}, {"plan", &c.plan}, {"engine_plan", &c.enginePlan},
		{"tokenize", &c.tokenize}, {"detokenize", &c.detokenize}, {"chat_tokens", &c.chatTokens},
		{"generate", &c.generate}, {"embed", &c.embed}, {"cancel", &c.cancel}, {"read_counters", &c.readCounters},
		{"options_init_sized", &c.initOptions}, {"request_init_sized", &c.initRequest},
		{"result_init_sized", &c.initResult}, {"counters_init_sized", &c.initCounters},
		{"loader_options_init_sized", &c.initLoaderOptions}, {"pool_options_init_sized", &c.initPoolOptions},
		{"pool_counters_init_sized", &c.initPoolCounters}, {"loader_open", &c.loaderOpen},
		{"loader_close", &c.loaderClose}, {"loader_backend", &c.loaderBackend},
		{"loader_device_backend", &c.loaderDeviceBackend}, {"loader_file_bytes", &c.loaderFileBytes},
		{"loader_enqueue", &c.loaderEnqueue}, {"loader_enqueue_device", &c.loaderEnqueueDevice},
		{"loader_submit", &c.loaderSubmit}, {"loader_poll", &c.loaderPoll}, {"loader_wait", &c.loaderWait},
		{"loader_allocate", &c.loaderAllocate}, {"pool_open", &c.poolOpen}, {"pool_close", &c.poolClose},
		{"pool_unmap", &c.poolUnmap}, {"pool_map", &c.poolMap}, {"pool_prefetch", &c.poolPrefetch},
		{"pool_acquire", &c.poolAcquire}, {"pool_acquire", &c.poolAcquireDevice}, {"pool_release", &c.poolRelease},
		{"pool_release_on", &c.poolReleaseOn}, {"pool_read_counters", &c.poolReadCounters},
		{"dequantize", &c.dequantize}, {"gemv", &c.gemv},
	} {
		symbol, err := findSymbol(handle, "millrace_"+function.name)
		if err != nil {
			return &Error{Unsupported, fmt.Sprintf("%s has no millrace_%s: it is older than this package; update it", path, function.name)}
		}
		purego.RegisterFunc(function.to, symbol)
	}
	onText = purego.NewCallback(tellText)
	loaded, libraryOf = true, path
	return nil
}

// Version is the library's.
func Version() (string, error) {
	if err := Load(""); err != nil {
		return "", err
	}
	return textAt(c.version()), nil
}

// call runs a function of the library and makes an error of its status. The message is the calling thread's.
func call(function func() int32) error {
	if err := Load(""); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := function(); status != 0 {
		return &Error{Code(status), textAt(c.lastError())}
	}
	return nil
}

// textAt copies what a C string holds.
func textAt(at unsafe.Pointer) string {
	if at == nil {
		return ""
	}
	length := 0
	for *(*byte)(unsafe.Add(at, length)) != 0 {
		length++
	}
	return string(unsafe.Slice((*byte)(at), length))
}

// taken copies `count` values that the library gave out, and gives them back.
func taken[T any](at unsafe.Pointer, count int) []T {
	defer c.free(at)
	return append([]T(nil), unsafe.Slice((*T)(at), count)...)
}

// cText is a C string; nil for "".
func cText(text string) *byte {
	if text == "" {
		return nil
	}
	return &append([]byte(text), 0)[0]
}

// checkText refuses what a C string would cut short.
func checkText(what, text string) error {
	for i := 0; i < len(text); i++ {
		if text[i] == 0 {
			return &Error{InvalidArgument, what + " holds a zero byte"}
		}
	}
	return nil
}

func first[T any](values []T) *T {
	if len(values) == 0 {
		return nil
	}
	return &values[0]
}

func asInt(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}
