package millrace

import "unsafe"

// Piece is a range of a loader's file.
type Piece struct{ Offset, Bytes uint64 }

// PoolOptions say how much memory a pool takes.
type PoolOptions struct {
	MemoryBytes uint64 // all that the pieces in memory may take; required
	Policy      string // which piece leaves: "lru" (default), "lfu" or "auto"
	Device      bool   // in the memory of the CUDA device current on the calling thread, not the host's
}

type cPoolOptions struct {
	structSize     uintptr
	memoryBytes    uint64
	policy, memory *byte
}

// PoolCounters count what a pool did.
type PoolCounters struct {
	Hits, Misses, Evictions uint64 // pieces acquired or prefetched that were there, that were not, that left
	BytesFromDisk           uint64
	StallNanoseconds        uint64 // Acquire waited
	Slots                   uint64 // pieces that memory holds; each takes as much as the largest
	MappedBytes             uint64 // of memory behind the slots now: a device's is taken when slots are first used
}

type cPoolCounters struct {
	structSize uintptr
	counters   PoolCounters
}

// Pool holds more pieces of a file (experts) than memory does, those in use in memory.
type Pool struct {
	handle unsafe.Pointer
	pieces []Piece
	device bool
}

// OpenPool names the pieces from 0 on. The loader, not one of "mmap", stays open longer than the pool.
func OpenPool(loader *Loader, pieces []Piece, options PoolOptions) (*Pool, error) {
	if err := checkText("Policy", options.Policy); err != nil {
		return nil, err
	}
	p := &Pool{pieces: append([]Piece(nil), pieces...), device: options.Device}
	err := loader.call(func() int32 {
		o := new(cPoolOptions)
		c.initPoolOptions(unsafe.Pointer(o), unsafe.Sizeof(*o))
		o.memoryBytes = options.MemoryBytes
		if options.Policy != "" {
			o.policy = cText(options.Policy)
		}
		if options.Device {
			o.memory = cText("device")
		}
		return c.poolOpen(loader.handle, first(p.pieces), uintptr(len(p.pieces)), o, &p.handle)
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Close waits for the streams of ReleaseOn.
func (p *Pool) Close() {
	if p.handle != nil {
		c.poolClose(p.handle)
		p.handle = nil
	}
}

func (p *Pool) call(function func() int32) error {
	if p == nil || p.handle == nil {
		return errClosed
	}
	return call(function)
}

// Prefetch starts to read the pieces that are not there, as far as slots are free, and keeps them for their Acquire
// until the next Prefetch.
func (p *Pool) Prefetch(pieces []uint32) error {
	return p.call(func() int32 { return c.poolPrefetch(p.handle, first(pieces), uintptr(len(pieces))) })
}

// Acquire waits for a piece's bytes in host memory. They are valid, and do not move, until the piece was released as
// often as it was acquired. Unavailable: every slot is acquired.
func (p *Pool) Acquire(piece uint32) ([]byte, error) {
	if p != nil && p.device {
		return nil, &Error{InvalidArgument, "the pool is in device memory: use AcquireDevice"}
	}
	var data unsafe.Pointer
	if err := p.call(func() int32 { return c.poolAcquire(p.handle, piece, &data) }); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(data), p.pieces[piece].Bytes), nil
}

// AcquireDevice is the same in device memory: every stream's launches from here on see the bytes.
func (p *Pool) AcquireDevice(piece uint32) (address uintptr, err error) {
	if p != nil && !p.device {
		return 0, &Error{InvalidArgument, "the pool is in host memory: use Acquire"}
	}
	err = p.call(func() int32 { return c.poolAcquireDevice(p.handle, piece, &address) })
	return address, err
}

// Release undoes one Acquire.
func (p *Pool) Release(piece uint32) error {
	return p.call(func() int32 { return c.poolRelease(p.handle, piece) })
}

// ReleaseOn does so for a piece that what was launched on `stream` (a cudaStream_t) still reads.
func (p *Pool) ReleaseOn(piece uint32, stream uintptr) error {
	return p.call(func() int32 { return c.poolReleaseOn(p.handle, piece, stream) })
}

// Unmap gives at least `bytes` of memory back, as far as slots are neither acquired nor prefetched; one stays.
func (p *Pool) Unmap(bytes uint64) (unmapped uint64, err error) {
	err = p.call(func() int32 { return c.poolUnmap(p.handle, bytes, &unmapped) })
	return unmapped, err
}

// Map takes back what was given, and makes sure that `bytes` of memory are there now (0: as they are first used).
func (p *Pool) Map(bytes uint64) error {
	return p.call(func() int32 { return c.poolMap(p.handle, bytes) })
}

// Counters reads them.
func (p *Pool) Counters() (PoolCounters, error) {
	out := new(cPoolCounters)
	err := p.call(func() int32 {
		c.initPoolCounters(unsafe.Pointer(out), unsafe.Sizeof(*out))
		return c.poolReadCounters(p.handle, out)
	})
	return out.counters, err
}
