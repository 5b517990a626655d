// The theme's styles are read once for each version of the letter, not for each node, so that a long letter is saved quickly.
import { EmailTheming, getEmailTheming, getMergedCssJs, getResolvedNodeStyles } from "@react-email/editor/plugins";

export const theming = EmailTheming.extend({
  addOptions() {
    const options = this.parent();
    let read, styles;
    const getNodeStyles = (node, depth, editor) => {
      if (read !== editor.state.doc) {
        const chosen = getEmailTheming(editor);
        read = editor.state.doc;
        styles = getMergedCssJs(chosen.theme, chosen.styles);
      }
      return { ...getResolvedNodeStyles(node, depth, styles) };
    };
    return { ...options, serializerPlugin: { ...options.serializerPlugin, getNodeStyles } };
  },
});
