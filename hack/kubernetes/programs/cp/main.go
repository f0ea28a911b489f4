// cp copies a folder's content into another: `cp -r FROM/. TO/`, all that the plugin's init container asks of one.
// What is there is overwritten: an init container may run twice.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "-r" {
		fmt.Fprintf(os.Stderr, "usage: cp -r FROM/. TO/, got %q\n", os.Args)
		os.Exit(2)
	}
	from, to := os.DirFS(os.Args[2]), os.Args[3]
	err := fs.WalkDir(from, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, path)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		content, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o644)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "cp:", err)
		os.Exit(1)
	}
}
