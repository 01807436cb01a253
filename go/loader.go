package millrace

import (
	"runtime"
	"sync"
	"unsafe"
)

// LoaderOptions say how a file is read.
type LoaderOptions struct {
	Backend      string // "auto" (default), "pread-direct", "pread", "mmap"; Linux: "io_uring"; Windows: "directstorage"
	QueueDepth   int    // requests in flight; 0: 32
	RequestBytes uint64 // large reads are cut into requests of this size; 0: 1 MiB
	DeviceReads  string // into device memory: "auto" (default), "cufile", "ring"
}

type cLoaderOptions struct {
	structSize   uintptr
	backend      *byte
	queueDepth   int32
	requestBytes uint64
	deviceReads  *byte
}

// Loader reads a file at the disk's speed: plan reads with Enqueue, start them with Submit, wait for each.
type Loader struct {
	handle unsafe.Pointer
	lock   sync.Mutex
	pins   map[uint64]*runtime.Pinner // of reads whose destination is Go's memory
}

// OpenLoader opens a file.
func OpenLoader(path string, options LoaderOptions) (*Loader, error) {
	if err := Load(""); err != nil {
		return nil, err
	}
	for what, text := range map[string]string{"path": path, "Backend": options.Backend, "DeviceReads": options.DeviceReads} {
		if err := checkText(what, text); err != nil {
			return nil, err
		}
	}
	o := new(cLoaderOptions)
	c.initLoaderOptions(unsafe.Pointer(o), unsafe.Sizeof(*o))
	if options.Backend != "" {
		o.backend = cText(options.Backend)
	}
	if options.DeviceReads != "" {
		o.deviceReads = cText(options.DeviceReads)
	}
	if options.QueueDepth != 0 {
		o.queueDepth = int32(options.QueueDepth)
	}
	if options.RequestBytes != 0 {
		o.requestBytes = options.RequestBytes
	}
	l := &Loader{pins: map[uint64]*runtime.Pinner{}}
	name := append([]byte(path), 0)
	if err := call(func() int32 { return c.loaderOpen(&name[0], o, &l.handle) }); err != nil {
		return nil, err
	}
	return l, nil
}

// Close waits for reads that are under way.
func (l *Loader) Close() {
	if l.handle == nil {
		return
	}
	c.loaderClose(l.handle)
	l.handle = nil
	for _, pin := range l.pins {
		pin.Unpin()
	}
	l.pins = nil
}

func (l *Loader) call(function func() int32) error {
	if l == nil || l.handle == nil {
		return errClosed
	}
	return call(function)
}

// Backend is what was chosen, such as "io_uring+O_DIRECT".
func (l *Loader) Backend() string { return textAt(c.loaderBackend(l.handle)) }

// DeviceBackend is the same for reads into device memory; "" before the first one is planned.
func (l *Loader) DeviceBackend() string { return textAt(c.loaderDeviceBackend(l.handle)) }

// Size is the file's, in bytes.
func (l *Loader) Size() uint64 { return c.loaderFileBytes(l.handle) }

// Read is one that was planned.
type Read struct {
	loader *Loader
	number uint64
}

// Enqueue plans a read of len(to) bytes at `offset`. The memory is pinned until Wait.
func (l *Loader) Enqueue(offset uint64, to []byte) (Read, error) {
	read := Read{loader: l}
	if len(to) == 0 {
		return read, &Error{InvalidArgument, "a read of no bytes"}
	}
	pin := new(runtime.Pinner)
	pin.Pin(&to[0])
	err := l.call(func() int32 {
		return c.loaderEnqueue(l.handle, offset, uint64(len(to)), unsafe.Pointer(&to[0]), 0, &read.number)
	})
	if err != nil {
		pin.Unpin()
		return read, err
	}
	l.lock.Lock()
	l.pins[read.number] = pin
	l.lock.Unlock()
	return read, nil
}

// EnqueueDevice plans a read into device memory, of the CUDA device current on the calling thread (lock the goroutine to
// it). No stream may use the destination before Wait.
func (l *Loader) EnqueueDevice(offset, bytes uint64, address uintptr) (Read, error) {
	read := Read{loader: l}
	err := l.call(func() int32 { return c.loaderEnqueueDevice(l.handle, offset, bytes, address, &read.number) })
	return read, err
}

// Submit starts all reads that were planned.
func (l *Loader) Submit() error { return l.call(func() int32 { return c.loaderSubmit(l.handle) }) }

// Done tells whether the read has ended, well or not.
func (r Read) Done() (bool, error) {
	var done int32
	err := r.loader.call(func() int32 { return c.loaderPoll(r.loader.handle, r.number, &done) })
	return done != 0, err
}

// Wait blocks until the read has ended, which must have been submitted, and forgets it. The bytes are there, all of
// them, or the error says why not.
func (r Read) Wait() error {
	err := r.loader.call(func() int32 { return c.loaderWait(r.loader.handle, r.number) })
	r.loader.lock.Lock()
	defer r.loader.lock.Unlock()
	if pin := r.loader.pins[r.number]; pin != nil {
		pin.Unpin()
		delete(r.loader.pins, r.number)
	}
	return err
}

// ReadAt reads len(to) bytes at `offset`, as io.ReaderAt does where the file has that many.
func (l *Loader) ReadAt(to []byte, offset int64) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	if offset < 0 {
		return 0, &Error{InvalidArgument, "an offset below 0"}
	}
	read, err := l.Enqueue(uint64(offset), to)
	if err == nil {
		err = l.Submit()
	}
	if err == nil {
		err = read.Wait()
	}
	if err != nil {
		return 0, err
	}
	return len(to), nil
}
