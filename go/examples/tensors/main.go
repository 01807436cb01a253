// Loads a model's tensors into memory, a GPU's with -device, and says how fast that was:
// go run ./examples/tensors [-device] MODEL.gguf
package main

import (
	"flag"
	"fmt"
	"log"
	"runtime"
	"time"

	"millrace"
)

func main() {
	device := flag.Bool("device", false, "into the GPU's memory")
	flag.Parse()
	runtime.LockOSThread() // the GPU is the thread's
	tensors, err := millrace.Tensors(flag.Arg(0))
	check(err)
	loader, err := millrace.OpenLoader(flag.Arg(0), millrace.LoaderOptions{})
	check(err)
	defer loader.Close()
	// All of them are one piece, so that they lie as in the file.
	all := millrace.Piece{Offset: tensors[0].Offset, Bytes: loader.Size() - tensors[0].Offset}
	options := millrace.PoolOptions{MemoryBytes: all.Bytes + 64<<10, Device: *device} // and whole blocks around it
	pool, err := millrace.OpenPool(loader, []millrace.Piece{all}, options)
	check(err)
	defer pool.Close()
	begin, first := time.Now(), uintptr(0)
	if *device {
		first, err = pool.AcquireDevice(0)
	} else {
		_, err = pool.Acquire(0)
	}
	check(err)
	seconds := time.Since(begin).Seconds()
	for _, tensor := range tensors {
		fmt.Printf("%#12x %12d %v %s\n", first+uintptr(tensor.Offset-all.Offset), tensor.Bytes, tensor.Shape, tensor.Name)
	}
	fmt.Printf("%d tensors by %s, %.2f GB/s\n", len(tensors), loader.Backend(), float64(all.Bytes)/seconds/1e9)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
