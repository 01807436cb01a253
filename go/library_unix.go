//go:build !windows

package millrace

import "github.com/ebitengine/purego"

const libraryName = "libmillrace.so.0"

func openLibrary(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func findSymbol(library uintptr, name string) (uintptr, error) { return purego.Dlsym(library, name) }
