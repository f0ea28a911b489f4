// cp copies a folder's content into another: `cp -r FROM/. TO/`, all that the plugin's init container asks of one.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "-r" {
		fmt.Fprintf(os.Stderr, "usage: cp -r FROM/. TO/, got %q\n", os.Args)
		os.Exit(2)
	}
	if err := os.CopyFS(os.Args[3], os.DirFS(os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, "cp:", err)
		os.Exit(1)
	}
}
