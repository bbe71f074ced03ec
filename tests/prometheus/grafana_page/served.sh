# Puts beside the bundle what @grafana/ui asks the server for: icons, and the font Inter.
set -e
served=bundle/public
font=node_modules/@fontsource/inter/files/inter-latin
mkdir -p $served/build $served/fonts/inter
cp index.html bundle
cp -r node_modules/@grafana/ui/dist/public/img $served/build
cp $font-400-normal.woff2 $served/fonts/inter/Inter-Regular.woff2
cp $font-500-normal.woff2 $served/fonts/inter/Inter-Medium.woff2
